# SPDX-License-Identifier: Apache-2.0
"""Mermaid flowcharts as pictures, drawn by Graphviz, so that the site needs no script of Mermaid. Only what the pages
use is read: nodes of three shapes, edges, subgraphs."""
import html
import re
import subprocess

shapes = {"([": ('shape=box style="rounded"', "])"), "[/": ("shape=parallelogram", "/]"), "[": ("shape=box", "]")}
node = re.compile(r'(\w+)(?:(\(\[|\[/|\[)"([^"]*)"(?:\]\)|/\]|\]))?$')


def label(text):
    return html.unescape(text.replace("<br/>", "\n")).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def dot(chart):
    lines = []
    first, *rest = chart.strip().splitlines()
    direction = re.fullmatch(r"flowchart (LR|TB)", first)[1]

    def declared(text):
        match = node.match(text.strip())
        if match is None:
            raise ValueError(f"this line of a flowchart is not read: {text}")
        if match[2]:
            lines.append(f'{match[1]} [label="{label(match[3])}" {shapes[match[2]][0]}]')
        return match[1]

    for line in rest:
        line = line.strip()
        if opened := re.fullmatch(r'subgraph (\w+)\["([^"]*)"\]', line):
            lines.append(f'subgraph cluster_{opened[1]} {{ label="{label(opened[2])}"')
        elif line == "end":
            lines.append("}")
        else:
            ends = [declared(part) for part in line.split(" --> ")]
            lines += [f"{a} -> {b}" for a, b in zip(ends, ends[1:])]
    # The colours are those of the text around it, in the light as in the dark.
    return (f'digraph {{ rankdir={direction} bgcolor=transparent color="#009688" fontname="sans-serif" fontsize=11 '
            'node [fontname="sans-serif" fontsize=11 color="#009688" height=0.3 margin="0.12,0.05"] '
            'edge [color="#009688" arrowsize=0.6]\n' + "\n".join(lines) + "\n}\n")


def svg(charts):
    """The pictures of several flowcharts, drawn by one program."""
    if not charts:
        return []
    drawn = subprocess.run(["dot", "-Tsvg"], input="".join(map(dot, charts)), text=True, check=True, capture_output=True)
    pictures = re.findall(r"<svg .*?</svg>", drawn.stdout, flags=re.S)
    if len(pictures) != len(charts):
        raise ValueError(f"{len(charts)} flowcharts, and {len(pictures)} pictures of them")
    return ['<div class="diagram">' + re.sub(r'fill="(black|#000000)"|(?<=<text )', 'fill="currentColor" ',
                                           re.sub(r"<!--.*?-->\n?|<title>.*?</title>\n?", "", p, flags=re.S)).replace("\n", " ")
            + "</div>" for p in pictures]
