#!/bin/sh
redis-cli ping
