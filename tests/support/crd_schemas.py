"""The kinds that operators add, as far as deploy/k8s uses them: JSON schemas that allow nothing else.

Written from the operators' own references: keda.sh/docs (ScaledObject, Prometheus scaler), cert-manager.io/docs (API reference),
prometheus-operator.dev (API reference), jobset.sigs.k8s.io (API reference).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "integer", "minimum": 0}
DURATION: Schema = {"type": "string", "pattern": r"^(\d+(ms|s|m|h))+$"}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def record(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these properties and no others."""
    properties = required | (optional or {})
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def some(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def kind(version: str, name: str, specification: Schema) -> Schema:
    metadata = record({"name": TEXT, "namespace": TEXT}, {"labels": LABELS, "annotations": LABELS})
    return record(
        {"apiVersion": {"const": version}, "kind": {"const": name}, "metadata": metadata, "spec": specification}
    )


SCALING_RULES = record(
    {"stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600}},
    {
        "policies": some(
            record(
                {
                    "type": {"enum": ["Percent", "Pods"]},
                    "value": {"type": "integer", "minimum": 1},
                    "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
                }
            )
        )
    },
)
SCALED_OBJECT = kind(
    "keda.sh/v1alpha1",
    "ScaledObject",
    record(
        {
            "scaleTargetRef": record({"name": TEXT}),
            "minReplicaCount": NUMBER,
            "maxReplicaCount": NUMBER,
            "fallback": record({"failureThreshold": NUMBER, "replicas": NUMBER}),
            "triggers": some(
                record(
                    {
                        "type": {"const": "prometheus"},
                        # KEDA's fallback works for no other.
                        "metricType": {"const": "AverageValue"},
                        # Every value of a trigger is a text.
                        "metadata": record(
                            {
                                "serverAddress": {"type": "string", "pattern": "^https?://"},
                                "query": TEXT,
                                "threshold": {"type": "string", "pattern": r"^[0-9.]+$"},
                            },
                            {"ignoreNullValues": {"enum": ["true", "false"]}},
                        ),
                    },
                    {"name": TEXT},
                )
            ),
        },
        {
            "pollingInterval": NUMBER,
            "advanced": record(
                {
                    "horizontalPodAutoscalerConfig": record(
                        {"behavior": record({"scaleUp": SCALING_RULES, "scaleDown": SCALING_RULES})}
                    )
                }
            ),
        },
    ),
)
ISSUER = kind(
    "cert-manager.io/v1",
    "Issuer",
    {"oneOf": [record({"selfSigned": record({})}), record({"ca": record({"secretName": TEXT})})]},
)
CERTIFICATE = kind(
    "cert-manager.io/v1",
    "Certificate",
    record(
        {
            "secretName": TEXT,
            "commonName": {"type": "string", "maxLength": 64},
            "duration": DURATION,
            "privateKey": record(
                {"algorithm": {"const": "ECDSA"}, "size": {"enum": [256, 384, 521]}},
                {"rotationPolicy": {"enum": ["Always", "Never"]}},
            ),
            "issuerRef": record({"name": TEXT, "kind": {"const": "Issuer"}}),
        },
        {
            "isCA": {"type": "boolean"},
            "renewBefore": DURATION,
            "usages": some({"enum": ["server auth", "client auth"]}),
            "dnsNames": some(TEXT),
            "ipAddresses": some({"type": "string", "format": "ipv4"}),
        },
    ),
)
POD_MONITOR = kind(
    "monitoring.coreos.com/v1",
    "PodMonitor",
    record(
        {
            "selector": record({"matchLabels": LABELS}),
            "podMetricsEndpoints": some(record({"port": TEXT}, {"path": TEXT, "interval": DURATION})),
        },
        {"jobLabel": TEXT},
    ),
)
RULE = record(
    {"alert": TEXT, "expr": TEXT},
    {"for": DURATION, "keep_firing_for": DURATION, "labels": LABELS, "annotations": LABELS},
)
PROMETHEUS_RULE: Schema = kind(
    "monitoring.coreos.com/v1",
    "PrometheusRule",
    record({"groups": some(record({"name": TEXT, "rules": some(RULE)}, {"interval": DURATION}))}),
)
JOB_SET = kind(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    record(
        {
            "network": record(
                {"enableDNSHostnames": {"type": "boolean"}, "subdomain": TEXT},
                {"publishNotReadyAddresses": {"type": "boolean"}},
            ),
            "failurePolicy": record({"maxRestarts": NUMBER}),
            # A job's template is Kubernetes' own.
            "replicatedJobs": some(
                record({"name": TEXT, "replicas": NUMBER, "template": record({"spec": {"type": "object"}})})
            ),
        }
    ),
)
SCHEMAS = {
    "JobSet": JOB_SET,
    "ScaledObject": SCALED_OBJECT,
    "Issuer": ISSUER,
    "Certificate": CERTIFICATE,
    "PodMonitor": POD_MONITOR,
    "PrometheusRule": PROMETHEUS_RULE,
}
