#!/usr/bin/env python3
"""Makes keys of one task for AWS: a storage grant command (docs/security.md), for

    atoll-coordinator --storage-grant-command 'ATOLL_GRANT_ROLE=arn:aws:iam::123456789012:role/atoll-task \
        /opt/atoll/aws_sts.py' ...

It assumes ATOLL_GRANT_ROLE with a session policy that allows the prefixes of the request and nothing else. The role may
do what any task may: read, write and delete below the blob store's prefix, and list its bucket. The coordinator's own
keys must be allowed to assume it. Needs the AWS command line tool, which finds the coordinator's keys as it always does.

This is an example: it has not been run against AWS. Try it by hand before you rely on it:

    echo '{"task_id": "try/x", "attempt": 1, "blob_store": "s3://BUCKET/PREFIX", "read_prefixes": [],
           "write_prefixes": ["s3://BUCKET/PREFIX/try/"], "lifetime_seconds": 900}' | ATOLL_GRANT_ROLE=... aws_sts.py
"""

import json
import os
import re
import subprocess
import sys

# AWS takes session policies of at most 2,048 characters, and sessions of 15 minutes or more.
LONGEST_POLICY = 2048
SHORTEST_SECONDS = 900


def resources(uris):
    """ARNs of folders ("s3://bucket/folder/") and of single files."""
    for uri in uris:
        # Rejects characters that a policy would take for a pattern or a variable, so that they cannot widen the grant.
        if not uri.startswith("s3://") or re.search(r"[*?$]", uri):
            sys.exit(f"cannot be granted: {uri}")
    arns = ["arn:aws:s3:::" + uri.removeprefix("s3://") for uri in uris]
    return [arn + "*" if arn.endswith("/") else arn for arn in arns]


def session_policy(request):
    bucket = request["blob_store"].removeprefix("s3://").split("/")[0]
    reads = resources(request["read_prefixes"] + request["write_prefixes"])
    writes = resources(request["write_prefixes"])
    statements = [
        # ListBucket lets the attempt list all file names of the bucket: without it S3 answers 403, not 404, for an
        # absent file.
        {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::" + bucket},
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": reads},
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            "Resource": writes,
        },
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def main():
    request = json.load(sys.stdin)
    policy = session_policy(request)
    if len(policy) > LONGEST_POLICY:
        sys.exit(f"the session policy has {len(policy)} characters, AWS takes {LONGEST_POLICY}")
    session = re.sub(r"[^\w=,.@-]", "-", f"{request['task_id']}.{request['attempt']}")[-64:]
    seconds = max(int(request["lifetime_seconds"]), SHORTEST_SECONDS)
    answer = subprocess.run(
        ["aws", "sts", "assume-role", "--output", "json", "--role-arn", os.environ["ATOLL_GRANT_ROLE"],
         "--role-session-name", session, "--policy", policy, "--duration-seconds", str(seconds)],
        check=False, stdout=subprocess.PIPE)  # fmt: skip
    if answer.returncode != 0:
        sys.exit(answer.returncode)
    print(json.dumps({"Version": 1, **json.loads(answer.stdout)["Credentials"]}))


if __name__ == "__main__":
    main()
