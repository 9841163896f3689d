"""A bundle answers over HTTP: texts as OpenAI's clients ask for them, pictures as JSON. It needs the extra `serve`."""
