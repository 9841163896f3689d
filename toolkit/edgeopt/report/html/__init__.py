"""The page: a document as one HTML file that loads nothing, its charts drawn as SVG by 900 lines of our own.

A chart library would be 1 to 5 MB in every file, draw with JavaScript only, and need as much code again for what it
lacks: text that keeps its size on a phone, marks that a keyboard and a screen reader reach, paper.
"""
