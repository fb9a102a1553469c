#!/usr/bin/env python3
"""Prints a header of include/ with its plain comments as Doxygen wants them.

A comment above a declaration describes it, one behind a declaration too, and the one at the top of a
file describes the file. Doxygen tells them by ///, ///< and @file; readers of headers need none of it.
"""

import re
import sys

TRAILING = re.compile(r"^(?P<code>\s*\S.*?)\s{2}// (?P<text>.*)$")


def doxygen(lines):
    """Lines with comments marked."""
    out = []
    before_code = True
    behind = False  # the line before ended in a comment behind code, which this one may continue
    for line in lines:
        text = line.strip()
        if text.startswith("//"):
            marker = "///<" if behind and line.index("//") > 0 and out[-1].find("///<") == line.index("//") else "///"
            if before_code and not any("@file" in x for x in out):
                out.append("/// @file")
            out.append(line.replace("//", marker, 1))
            behind = marker == "///<"
            continue
        if before_code and not text.startswith("//"):
            before_code = False
            out.append("")
        match = TRAILING.match(line)
        behind = match is not None and not text.startswith("#")
        out.append(f"{match['code']}  ///< {match['text']}" if behind else line)
    return out


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(doxygen(file.read().split("\n"))))
