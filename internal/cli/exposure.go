package cli

import (
	"cmp"

	"nightporter/internal/config"
	"nightporter/internal/mcp/gateway"
)

// exposure is how clients under these flags see tools: as the grant says, else as the gateway's clients do.
func (g *grantFlags) exposure(cfg *config.Config) gateway.Exposure {
	said := cfg.Gateway.Exposure
	if grant := cfg.Grants[g.Grant]; grant != nil {
		said = cmp.Or(grant.Exposure, said)
	}
	return gateway.Exposure(said)
}
