{{- define "tidewire.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidewire.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidewire.labels" -}}
{{ include "tidewire.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "tidewire.tlsSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- printf "%s-tls" (include "tidewire.fullname" .) -}}
{{- else -}}
{{- fail "tls.enabled needs tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- end -}}

{{- define "tidewire.apiHasTls" -}}
{{- if and .Values.tls.enabled .Values.tls.api -}}true{{- end -}}
{{- end -}}

{{- define "tidewire.apiScheme" -}}
{{- if include "tidewire.apiHasTls" . -}}HTTPS{{- else -}}HTTP{{- end -}}
{{- end -}}

{{/* Options that the chart sets, as variables. They have priority over the file. */}}
{{- define "tidewire.variables" -}}
TIDEWIRE__NODE__NAME: {{ include "tidewire.fullname" . }}
TIDEWIRE__NODE__DATA_DIR: /data
TIDEWIRE__API__BIND: "0.0.0.0:18083"
{{- if .Values.passwords.existingSecret }}
TIDEWIRE__ACCESS__PASSWORD_FILE: /etc/tidewire/secrets/passwords
{{- end }}
{{- if .Values.tls.enabled }}
TIDEWIRE__TLS__CERT_FILE: /etc/tidewire/tls/tls.crt
TIDEWIRE__TLS__KEY_FILE: /etc/tidewire/tls/tls.key
{{- end }}
{{- if include "tidewire.apiHasTls" . }}
TIDEWIRE__API__CERT_FILE: /etc/tidewire/tls/tls.crt
TIDEWIRE__API__KEY_FILE: /etc/tidewire/tls/tls.key
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.serviceMonitor.tokenSecret.name) }}
TIDEWIRE__API__METRICS_WITHOUT_LOGIN: "true"
{{- end }}
{{- end -}}
