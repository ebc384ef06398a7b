// Kneewatch as a monitoring mixin (https://monitoring.mixins.dev): its rules and dashboards, as `make generate` writes them.
// The rules read what is configured from series; _config has the thresholds of alerts (docs/alerts.md). Vendor the whole repository:
//   jb install github.com/kneewatch/kneewatch@main
local template = importstr '../../alerts/generated/kneewatch.rules.tmpl';
local hasAlerts(group) = std.any([std.objectHas(rule, 'alert') for rule in group.rules]);
local isSlo(group) = std.startsWith(group.name, 'kneewatch-slo-');

{
  _config+:: {
    thresholds: {
      preemption_share: 0.1,
      kv_cache_usage: 1,
      headroom: 0.15,
      headroom_falling: 0.3,
      capacity_drop: 0.2,
      forecast_error: 0.3,
      queue_requests: 5,
    },
  },
  local given = $._config.thresholds,
  local replaced(text, name) = std.strReplace(text, '<<' + name + '>>', '%g' % given[name]),
  local groups = std.parseYaml(std.foldl(replaced, std.objectFields(given), template)).groups,
  // A group stays whole: its alerts read what its rules have just recorded.
  prometheusAlerts+:: { groups+: [group for group in groups if hasAlerts(group)] },
  prometheusRules+:: { groups+: [group for group in groups if !hasAlerts(group)] },
  // With `kubectl apply` or Argo CD, wrap these three and not all groups in one PrometheusRule: it keeps a copy of each object
  // in an annotation, which has no room for them all.
  prometheusRuleObjects:: {
    [name]: { apiVersion: 'monitoring.coreos.com/v1', kind: 'PrometheusRule', metadata: { name: name }, spec: specs[name] }
    for specs in [{
      'kneewatch-alerts': { groups: [group for group in $.prometheusAlerts.groups if !isSlo(group)] },
      'kneewatch-slo-alerts': { groups: [group for group in $.prometheusAlerts.groups if isSlo(group)] },
      'kneewatch-rules': $.prometheusRules,
    }]
    for name in std.objectFields(specs)
  },
  grafanaDashboards+:: {
    'kneewatch-capacity.json': import '../../dashboards/generated/kneewatch-capacity.json',
    'kneewatch-fleet.json': import '../../dashboards/generated/kneewatch-fleet.json',
    'kneewatch-probe.json': import '../../dashboards/generated/kneewatch-probe.json',
    'kneewatch-server.json': import '../../dashboards/generated/kneewatch-server.json',
    'kneewatch-target.json': import '../../dashboards/generated/kneewatch-target.json',
  },
}
