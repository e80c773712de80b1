"""Spark settings that a spec may set in `spark.conf`: resources, network, security, fault tolerance and monitoring."""

from __future__ import annotations

import re

from headrace.spec.base import InvalidValue

SPARK_SETTINGS: dict[str, str] = {
    "spark.authenticate": "Authenticate connections between the driver and executors.",
    "spark.blockManager.port": "Port of block managers. Default: random.",
    "spark.cores.max": "Maximum cores of the application on a standalone cluster.",
    "spark.driver.bindAddress": "Address on which the driver listens.",
    "spark.driver.blockManager.port": "Port of the driver's block manager. Default: random.",
    "spark.driver.host": "Host name or address by which executors reach the driver.",
    "spark.driver.maxResultSize": "Maximum size of all results of a job.",
    "spark.driver.port": "Port on which executors reach the driver. Default: random.",
    "spark.dynamicAllocation.enabled": "Add and remove executors with the load.",
    "spark.dynamicAllocation.executorIdleTimeout": "Remove an executor that is idle for this time.",
    "spark.dynamicAllocation.initialExecutors": "Initial number of executors.",
    "spark.dynamicAllocation.maxExecutors": "Maximum number of executors.",
    "spark.dynamicAllocation.minExecutors": "Minimum number of executors.",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "Add executors when tasks wait for this time.",
    "spark.dynamicAllocation.shuffleTracking.enabled": "Dynamic allocation without an external shuffle service.",
    "spark.eventLog.compress": "Compress event logs.",
    "spark.eventLog.dir": "Directory of event logs for the history server.",
    "spark.eventLog.enabled": "Write event logs.",
    "spark.excludeOnFailure.enabled": "Exclude executors and nodes with many failed tasks.",
    "spark.executor.heartbeatInterval": "Interval between the heartbeats of executors; `progress` events follow it.",
    "spark.executor.memoryOverhead": "Memory of an executor beside its heap, for its Python processes.",
    "spark.executor.memoryOverheadFactor": "The same, as a ratio of the heap.",
    "spark.executor.pyspark.memory": "Limit of the memory of all Python processes of an executor.",
    "spark.io.encryption.enabled": "Encrypt temporary files on local disks.",
    "spark.locality.wait": "Time to wait for a free executor on a preferred node.",
    "spark.network.crypto.enabled": "Encrypt connections between the driver and executors.",
    "spark.network.timeout": "Default timeout of network operations; an executor is lost after it.",
    "spark.port.maxRetries": "Number of ports to try.",
    "spark.rpc.askTimeout": "Timeout of a remote call.",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "Maximum time to wait for executors before the first batch.",
    "spark.scheduler.minRegisteredResourcesRatio": "Ratio of executors to wait for before the first batch.",
    "spark.speculation": "Run speculative copies of slow tasks; the first result counts.",
    "spark.speculation.interval": "Interval between checks for slow tasks.",
    "spark.speculation.minTaskRuntime": "Minimum run time of a task before it is copied.",
    "spark.speculation.multiplier": "How many times slower than the median a slow task is.",
    "spark.speculation.quantile": "Ratio of tasks that must be complete before slow tasks are copied.",
    "spark.sql.adaptive.enabled": "Adaptive query execution, for merges by Spark.",
    "spark.sql.shuffle.partitions": "Number of shuffle partitions, for merges by Spark.",
    "spark.stage.maxConsecutiveAttempts": "Maximum attempts of a stage.",
    "spark.task.maxFailures": "Maximum failures of a task.",
    "spark.ui.enabled": "Run Spark's web UI on the driver.",
    "spark.ui.port": "Port of Spark's web UI.",
    "spark.yarn.am.cores": "Cores of the YARN application master.",
    "spark.yarn.am.memory": "Memory of the YARN application master.",
    "spark.yarn.archive": "Archive of Spark's jars that YARN nodes cache.",
    "spark.yarn.maxAppAttempts": "Maximum attempts of a YARN application.",
    "spark.yarn.queue": "YARN queue.",
    "spark.yarn.stagingDir": "Directory of files that YARN distributes.",
    "spark.yarn.tags": "Tags of the YARN application.",
    "spark.kubernetes.authenticate.driver.serviceAccountName": "Service account of the driver pod.",
    "spark.kubernetes.container.image": "Container image of the driver and the executors.",
    "spark.kubernetes.container.image.pullPolicy": "When the image is pulled.",
    "spark.kubernetes.container.image.pullSecrets": "Secrets for the image registry.",
    "spark.kubernetes.context": "Context of the Kubernetes configuration file.",
    "spark.kubernetes.driver.pod.name": "Pod name of the driver, so that executors end with it.",
    "spark.kubernetes.driver.podTemplateFile": "Pod template of the driver.",
    "spark.kubernetes.executor.limit.cores": "CPU limit of executor pods.",
    "spark.kubernetes.executor.podTemplateFile": "Pod template of executors.",
    "spark.kubernetes.executor.request.cores": "CPU request of executor pods.",
    "spark.kubernetes.file.upload.path": "Directory for files that the driver pod needs.",
    "spark.kubernetes.namespace": "Namespace of the pods.",
}
SETTING_FAMILIES: dict[str, str] = {
    "spark.executorEnv.NAME": "Environment variable of executors; not a secret.",
    "spark.kubernetes.driver.annotation.NAME": "Annotation of the driver pod.",
    "spark.kubernetes.driver.label.NAME": "Label of the driver pod.",
    "spark.kubernetes.driver.secrets.NAME": "Secret mounted in the driver pod, as a path.",
    "spark.kubernetes.executor.annotation.NAME": "Annotation of executor pods.",
    "spark.kubernetes.executor.label.NAME": "Label of executor pods.",
    "spark.kubernetes.executor.secrets.NAME": "Secret mounted in executor pods, as a path.",
    "spark.kubernetes.node.selector.NAME": "Label of the nodes that pods run on.",
}

_FAMILY = re.compile("|".join(re.escape(name).replace("NAME", r"[A-Za-z0-9._/-]+") for name in SETTING_FAMILIES))
_UNSUPPORTED = (
    (r"(?i).*\.authenticate\.secret(\..*)?", "set the environment variable _SPARK_AUTH_SECRET of the driver instead"),
    (
        r"(?i)spark\.executorEnv\..*(secret|passw|token|credential|key).*",
        "secrets travel with the tasks; see docs/operate/scaling.md",
    ),
    (r"spark\.executorEnv\.(PYTHON|PYSPARK|LD_).*", "use `environment` for Python and its packages"),
    (r"spark\.master", "use `master`"),
    (r"spark\.driver\.(memory|cores)", "use `memory` for the heap of the driver"),
    (r"spark\.executor\.(instances|cores|memory)", "use `executors`"),
    (
        r"spark\.(jars|files|archives|submit|pyspark|python|repl)(\..*)?|spark\.yarn\.(jars|dist\..*)",
        "Headrace sets the jars and the Python environment of executors; use `environment`",
    ),
    (r".*(extraJavaOptions|defaultJavaOptions)", "options of a JVM can load code; use HEADRACE_JVM for the driver"),
    (r".*(extraClassPath|extraLibraryPath|userClassPathFirst)", "classes cannot be loaded from a spec"),
    (
        r"(?i).*(class|classes|plugins|listeners?|extensions|provider|serializer|impl|manager)$",
        "classes cannot be loaded from a spec",
    ),
    (r"spark\.hadoop\..*", "use `storage` to configure object stores"),
    (r"spark\.(sql|databricks)\..*", "Headrace sets it; results could change"),
    (r"spark\.(local\.dir|redaction\.regex|ui\.filters|metrics\..*|ssl\..*)", "configure it on the nodes"),
)


def spark_setting(name: str) -> str:
    """Return a supported setting; raise InvalidValue with the reason for any other."""
    if name in SPARK_SETTINGS:
        return name
    for pattern, reason in _UNSUPPORTED:
        if re.fullmatch(pattern, name):
            raise InvalidValue("", message=f"setting '{name[:80]}' is not supported: {reason}")
    if _FAMILY.fullmatch(name):
        return name
    expected = "a setting of the list in docs/operate/scaling.md"
    raise InvalidValue(expected, message=f"unknown setting '{name[:80]}'", options=tuple(SPARK_SETTINGS))
