SUMMARY="";DESCRIPTION=""
def add_arguments(p): pass
def execute(a): return 0
