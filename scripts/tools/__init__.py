"""Tools around the program: conversion, comparisons."""
