{{- define "postroad.name" -}}
{{- if contains "postroad" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-postroad" (.Release.Name | trunc 41 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "postroad.selector" -}}
app.kubernetes.io/name: postroad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "postroad.labels" -}}
{{ include "postroad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "postroad.clusterSecret" -}}
{{- .Values.secret.existingSecret | default (printf "%s-cluster" (include "postroad.name" .)) -}}
{{- end -}}

{{- define "postroad.secret" -}}
{{- .Values.admin.existingSecret | default (printf "%s-admin" (include "postroad.name" .)) -}}
{{- end -}}
