# tries: an exception that fights back when it is shown: its name, its text and its class raise or never end
# right: an outcome with a name, and a short detail of printable characters
def strategy(board, initial):
    class Meta(type):
        @property
        def __name__(cls):
            return "\x1b[31m</script>\n" * 10 ** 6

    class Fight(BaseException, metaclass=Meta):
        def __str__(self):
            raise self

        __repr__ = __str__

    raise Fight
