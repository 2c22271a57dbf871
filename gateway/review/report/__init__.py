"""The review report: data first (`ReportData`, JSON), then a page of HTML, OSCAL, and a signature over all."""
