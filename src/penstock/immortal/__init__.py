"""Immortals: services that survive any crash (seed 002, `reference` of AMBROSIA).

wire          what travels between a coordinator and a language binding, byte for byte
"""
