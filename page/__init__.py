"""The web page of `demo` and the OpenAI image API, which one server offers."""
