"""The same load on Quire and on what a user would pick instead (see `__main__`)."""
