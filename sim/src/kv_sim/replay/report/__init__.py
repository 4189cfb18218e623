"""What is shown of results: as text, as JSON, and as a page with charts. Nothing is worked out here."""
