"python -m grpo_tutorials"
from grpo_tutorials.cli import main

if __name__ == "__main__": main()
