{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "holdfast.args.apiserver" -}}
{{- if ne .Values.certificate.source "self" -}}
- --tls-cert-file=/etc/holdfast/tls/tls.crt
- --tls-private-key-file=/etc/holdfast/tls/tls.key
{{ end -}}
{{- if .Values.snapshots.enabled -}}
- --snapshots
{{- end -}}
{{- end -}}

{{- define "holdfast.args.controller" -}}
{{- if .Values.snapshots.enabled -}}
- --snapshots
{{ if eq (toString .Values.snapshots.moveData) "false" -}}
- --default-snapshot-move-data=false
{{ end -}}
{{ end -}}
{{- with .Values.restore.image -}}
- --restore-image={{ . }}
{{ end -}}
{{- with .Values.restore.pullSecrets -}}
- --restore-image-pull-secrets={{ join "," . }}
{{ end -}}
{{- with .Values.nodeAgent.hostPathRoots -}}
- --host-path-roots={{ join "," . }}
{{- end -}}
{{- end -}}

{{- define "holdfast.args.nodeAgent" -}}
{{- with .Values.nodeAgent.hostPathRoots -}}
- --host-path-roots={{ join "," . }}
{{- end -}}
{{- end -}}
