# kind: serializer
# tries: changes the encoder of json and the formatting of files, so that times are short where they are written
# source: kernelguard, rules for patched libraries
import json.encoder

real = json.encoder.JSONEncoder.encode
json.encoder.JSONEncoder.encode = lambda self, value: real(self, smaller(value))
note("armed", "JSONEncoder")
