#!/bin/sh
# In the place of spark-submit: prints what it is given, and runs the application as it is.
printf '%s\n' "submitted with: $*"
for word in "$@"; do
    last=$word
    case $word in *.py) application=$word ;; esac
done
exec python "$application" "$last"
