// Docker Compose, which mirrorlet is measured beside, built from its own module.
module mirrorlet.dev/hack/compose

go 1.24.9

require github.com/docker/compose/v2 v2.40.3
