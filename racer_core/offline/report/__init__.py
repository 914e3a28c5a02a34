"""Report of `racer evaluate --report`: tables, figures, a page; knows only an evaluation."""
