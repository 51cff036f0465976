# tries: an int that is equal to everything, lies in every range, and belongs to a class that says it is int
# right: "bad_format": only plain ints are moves
def strategy(board, initial):
    class Meta(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return hash(int)

        def __instancecheck__(cls, other):
            return True

    class Yes(int, metaclass=Meta):
        __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda self, other: True
        __ne__ = lambda self, other: False
        __hash__ = int.__hash__
        __class__ = int

    class Move(tuple):
        __class__ = tuple

    return Move((Yes(0), Yes(0), Yes(0)))
