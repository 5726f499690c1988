"""python -m heads serve: OpenAI's protocol over the batches of models, by Starlette and uvicorn.

serve      the command: options, sockets, how it ends
app        the routes, who may use them; bodies: how theirs are read
watch      metrics and the access log
requests   a body's fields -> a Request; messages: a chat's
texts      a Request -> jobs -> JSON or events; answers: what all answers share, and vectors
responses  the same in the words of /v1/responses; anthropic: of /v1/messages; llama: of
           llama-server; tokens: /tokenize
reader     a text -> what is said, thought and called; tools, templates: chats that call tools;
           rendering: the processes that run templates; threads: what waits for these
engine     the thread that owns the batch; vectors: of texts
"""
