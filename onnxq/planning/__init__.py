"""How a plan is made, a step a file; :func:`onnxq.planning.planner.make_plan` is the row of steps.

``Question`` (what is asked: graph, target, options) and ``Decisions`` (what each node came to) are the two types that
all steps speak of. The steps: :mod:`candidates` asks the target's rows which nodes have an integer kernel, and what
keeps the others float; :mod:`absorption` pairs activation functions with the operator before them; :mod:`assignment`
chooses which candidates run in integers, at least cost by :mod:`placement`; :mod:`carry` finds what hands on finer
numbers than asked, :mod:`widths` where the readers of a tensor have to agree on one width; :mod:`sites` gives the
tensors of those nodes quantizers, and ties them. The steps import what answers questions (``table_rows``, ``specs``,
``placement``, ``carry``, ``relays``, ``weightless``), and not each other.
"""
