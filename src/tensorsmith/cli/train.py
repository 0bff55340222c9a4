def add_arguments(parser): pass
def run(options): return 0
