"""What `racer evaluate --report` writes: tables, figures and a page. Reads an evaluation only."""
