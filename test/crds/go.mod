module github.com/nordix/meridio-nsp/test/crds

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.92.1
