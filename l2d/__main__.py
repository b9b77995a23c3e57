"""python -m l2d"""

from l2d.cli import main

main()
