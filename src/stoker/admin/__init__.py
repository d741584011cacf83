"""The operator's room: every question and every action once, for the command line, pages and scripts alike."""

from stoker.admin.admin import Admin
from stoker.admin.jobs import Bulk, JobPage
from stoker.model.filter import Filter, InvalidFilter

__all__ = ["Admin", "Bulk", "Filter", "InvalidFilter", "JobPage"]
