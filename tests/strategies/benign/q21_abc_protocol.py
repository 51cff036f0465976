from abc import ABC, abstractmethod
from typing import Optional, NamedTuple, List, Tuple
class Move(NamedTuple):
    r: int
    c: int
    n: int
class P(ABC):
    @abstractmethod
    def go(self, b) -> Optional[Move]: ...
class Q(P):
    def go(self, board):
        super().__init__()
        for r in range(9):
            for c in range(9):
                if not board[r][c]:
                    for n in range(1, 10):
                        if n not in board[r]: return Move(r, c, n)
def strategy(board: List[List[int]], initial: List[List[int]]) -> Tuple[int, int, int]:
    return tuple(Q().go(board))
