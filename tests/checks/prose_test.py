"""Openings with and without a noun."""
import unittest

import prose


class ProseTest(unittest.TestCase):
    def found(self, path, *lines):
        return [number for number, _ in prose.findings(path, list(lines))[0]]

    def test_bare_openings_are_found(self):
        self.assertEqual(self.found("a.h", "// What lanes host.", "int x;", "int y;  // of calls", "int z;  // Of calls."),
                         [1, 4])
        self.assertEqual(self.found("a.md", "# What it is", "", "Who acts for islands says for which.", "", "- Nobody."),
                         [3, 5])
        self.assertEqual(self.found("a.py", "# One that waits."), [1])

    def test_sentences_are_not(self):
        self.assertEqual(self.found("a.h", "// The models that each executor has loaded.", "//", "// Returns nothing.",
                                    "x();  // No more than one."), [])

    def test_only_the_first_line_of_a_block_opens_it(self):
        self.assertEqual(self.found("a.h", "// Blocks until the caller has read", "// what it asked for."), [])
        self.assertEqual(self.found("a.md", "The coordinator deletes", "Nothing else."), [])

    def test_questions_and_code_are_left_alone(self):
        self.assertEqual(self.found("a.md", "What does it cost?", "", "```", "Of code", "```"), [])


if __name__ == "__main__":
    unittest.main()
