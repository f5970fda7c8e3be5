module drjosh.dev/zzglob

go 1.26

require github.com/bmatcuk/doublestar/v4 v4.10.0
