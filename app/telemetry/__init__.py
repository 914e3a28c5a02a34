"""What the process tells about itself: metrics, traces, logs and the loop's lag."""
