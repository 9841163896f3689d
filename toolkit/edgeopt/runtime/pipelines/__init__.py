"""Several models as one: a frame goes through them in order, with the app's own stages between them.

pipeline = Pipeline.load("bundle", stages={"lookup": find_products})
answer = pipeline.predict(frame)
"""

from edgeopt.runtime.pipelines.pipeline import Answer, Pipeline

__all__ = ["Answer", "Pipeline"]
