package cluster

// PIDs returns the process ids of the running programs.
func (c *Cluster) PIDs() []int {
	var ids []int
	for _, p := range []*process{c.etcd, c.api, c.controller} {
		if p != nil && p.running() {
			ids = append(ids, p.cmd.Process.Pid)
		}
	}
	return ids
}
