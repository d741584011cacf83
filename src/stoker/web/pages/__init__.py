"""The pages: each module loads what one page shows and names its template."""
