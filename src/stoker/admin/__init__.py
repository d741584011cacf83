"""The operator's room: every question and every action once, for the command line, pages and scripts alike."""

from stoker.admin.admin import Admin, Operators
from stoker.admin.bulk import Bulk
from stoker.admin.jobs import JobPage
from stoker.admin.preview import Preview
from stoker.model.filter import Filter, InvalidFilter
from stoker.model.redact import Redaction

__all__ = ["Admin", "Bulk", "Filter", "InvalidFilter", "JobPage", "Operators", "Preview", "Redaction"]
