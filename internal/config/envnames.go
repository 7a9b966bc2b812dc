package config

// EnvNames are the variables of Nightporter's environment that the value refers to, in order.
func (v Value) EnvNames() []string {
	var names []string
	for _, p := range v.parts {
		if p.scheme == envRef {
			names = append(names, p.text)
		}
	}
	return names
}
