"""SSD of TensorFlow: y before x, height before width, cells that share the input evenly, probabilities.

Logits have a sigmoid each, the background too.

Source: TensorFlow Object Detection API, `FasterRcnnBoxCoder._decode` and `MultipleGridAnchorGenerator`;
`export_tflite_ssd_graph_lib.py` for the outputs.
"""

from edgeopt.recipes.heads._offsets import Offsets
from edgeopt.recipes.recipe import Centres, Scores

HEAD = Offsets((1, 0, 3, 2), Scores.PROBABILITIES, Centres.EVEN, classes_exclude=False, has_landmarks=False).head()
