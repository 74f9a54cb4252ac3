// Package config reads the configuration of a trench: the ConfigMap meridio-configuration-<trench>, in the format of
// Meridio 1.x. Its keys are trench, conduits, streams, flows, vips, attractors and gateways; each holds YAML, read strictly
// and on its own: a key that is malformed spoils only itself and keeps the last value that was good. Unknown keys are ignored.
package config
