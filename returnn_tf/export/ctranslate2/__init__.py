"""The target ``ctranslate2``: Transformers for translation as CTranslate2 loads them."""
