"""Training and evaluation of routers, for the command line; knows no HTTP and no gateway."""
