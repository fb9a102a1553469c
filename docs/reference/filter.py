#!/usr/bin/env python3
"""Prints a header of include/ with its plain comments as Doxygen wants them (///, ///<, @file).

Readers of headers need none of Doxygen's signs. What a comment belongs to follows from its place:

- at the top of a file: the file;
- directly above a declaration: that declaration and no other, so that overloads and fields that
  share a line have one each;
- behind code, and going on below in the same column: what stands before it;
- with a blank line below: nothing. Headings and remarks are not printed.

Lines of a comment that are indented by two spaces or more (code, tables) are shown as they are. An
enum of C without a name holds the values of the typedef above it. The inline namespace for which
callers write nothing is left out.
"""

import re
import sys

COMMENT = re.compile(r"^(?P<indent>\s*)// ?(?P<text>.*)$")
TRAILING = re.compile(r"^(?P<code>\s*[^\s#/}].*?)  // (?P<text>.*)$")
UNWRITTEN = re.compile(r"^(inline |}  // )namespace FOVEA_EMBEDDED_ISA\b")
TYPE_OF_VALUES = re.compile(r"^typedef int32_t (\w+);")


def marked(comments, marker):
    """The lines of a comment, runs of indented ones between @code and @endcode."""
    out, as_is = [], False
    for n, line in enumerate(comments):
        indent, text = COMMENT.match(line).groups()
        following = next((x for x in (COMMENT.match(c)["text"] for c in comments[n:]) if x), "")
        indented = following.startswith("  ") and (text != "" or as_is)
        if indented and not as_is:
            out[-1] += " @code{.unparsed}"
        if as_is and not indented:
            text = "@endcode " + text
        as_is = indented
        out.append(f"{indent}{marker} {text}")
    if as_is:
        out[-1] += " @endcode"
    return out


def doxygen(lines):
    """The same lines with comments marked, so that Doxygen's messages name lines of the header."""
    out, n, of_file, type_of_values = [], 0, True, None
    while n < len(lines):
        match = COMMENT.match(lines[n])
        if match:
            end = n
            while end < len(lines) and COMMENT.match(lines[end]):
                end += 1
            if of_file:
                out += marked(lines[n:end], "///")
                out[-1] += " @file"
            elif end < len(lines) and lines[end].strip():
                out += marked(lines[n:end], "///")
            else:
                out += lines[n:end]
            n, of_file = end, False
            continue
        match = TRAILING.match(lines[n])
        if match:
            column = len(match["code"]) + 2
            out.append(f"{match['code']}  ///< {match['text']}")
            n += 1
            while n < len(lines) and COMMENT.match(lines[n]) and lines[n].index("//") == column:
                out.append(lines[n].replace("//", "///<", 1))
                n += 1
            continue
        if type_of_values and lines[n].startswith("enum {"):
            lines[n] = f"/** The values of #{type_of_values}. */ {lines[n]}"
        type_of_values = (TYPE_OF_VALUES.match(lines[n]) or [None, None])[1]
        out.append("" if UNWRITTEN.match(lines[n]) else lines[n])
        n += 1
    return out


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(doxygen(file.read().split("\n"))))
