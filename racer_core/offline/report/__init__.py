"""Report of `racer evaluate --report`: tables, figures, a page; knows nothing but an evaluation."""
