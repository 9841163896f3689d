"""SSD, RetinaFace: offsets (1, n, 4), x before y, scores (1, n, classes), and five points (1, n, 10) of faces.

Raw scores are logits: softmax where the recipe says `background`, else sigmoid.

Source: torchvision `BoxCoder.decode_single` and `DefaultBoxGenerator`; Pytorch_Retinaface, `decode`, `decode_landm`
and `PriorBox`.
"""

from edgeopt.recipes.heads._offsets import Offsets
from edgeopt.recipes.recipe import Centres, Scores

HEAD = Offsets((0, 1, 2, 3), Scores.LOGITS, Centres.MIDDLE, classes_exclude=True, has_landmarks=True).head()
