"""The small runtime: what a library's planner needs to look a placement table up.

Standard library only, and free of the rest of studytool: the folder may be copied into another tree.
`key` makes class keys, `lookup` reads tables and answers, `table` is the table that ships with the package.
"""
