# tries: replace the functions that a referee in the same process would use, then return nonsense
# right: "wrong" or "bad_format"; never "solved"
def strategy(board, initial):
    import builtins
    import sys
    yes = lambda *args, **kwargs: True
    builtins.len = lambda thing: 3
    builtins.isinstance = builtins.all = builtins.any = builtins.callable = yes
    builtins.type = lambda thing: tuple
    builtins.int = builtins.bool = builtins.sum = lambda *args: 0
    for module in list(sys.modules.values()):
        for name in ("refusal", "play_rules", "check"):
            if hasattr(module, name):
                setattr(module, name, lambda *args: None)
    return (0, 0, 5), (0, 0, 5), (0, 0, 5)
