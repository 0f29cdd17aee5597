#!/usr/bin/env python3
"""A storage grant command for the S3 server of the tests: makes an account of its own for every task, and lets the
bucket's policy give it the prefixes of the request.

Usage: grant_keys.py FOLDER    (its state: accounts.json, and a line per grant in grants.jsonl)
Environment: ATOLL_TEST_S3_SERVER (the program), ATOLL_TEST_S3_ENDPOINT, ROOT_ACCESS_KEY, ROOT_SECRET_KEY
"""

import datetime
import fcntl
import json
import os
import secrets
import subprocess
import sys

# Older ones lose their rights: a bucket's policy is at most 20 kB.
KEPT_ACCOUNTS = 10


def resources(uris):
    """S3 names of folders ("s3://bucket/folder/") and files."""
    names = ["arn:aws:s3:::" + uri.removeprefix("s3://") for uri in uris]
    return [name + "*" if name.endswith("/") else name for name in names]


def statements(account, bucket, request):
    def allow(actions, names):
        return {"Effect": "Allow", "Principal": {"AWS": [account]}, "Action": actions, "Resource": names}

    reads = resources(request["read_prefixes"] + request["write_prefixes"])
    writes = resources(request["write_prefixes"])
    return [
        allow(["s3:ListBucket"], ["arn:aws:s3:::" + bucket]),
        allow(["s3:GetObject"], reads),
        allow(["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"], writes),
    ]


def run(command, **options):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)


def make_account(access, secret):
    # Keys that only this test's own server knows may stand in a command line.
    root = ["--access", os.environ["ROOT_ACCESS_KEY"], "--secret", os.environ["ROOT_SECRET_KEY"]]
    endpoint = ["--endpoint-url", os.environ["ATOLL_TEST_S3_ENDPOINT"]]
    run([os.environ["ATOLL_TEST_S3_SERVER"], "admin", *root, *endpoint, "create-user", "--access", access, "--secret",
         secret, "--role", "user"])


def put_policy(bucket, policy):
    user = os.environ["ROOT_ACCESS_KEY"] + ":" + os.environ["ROOT_SECRET_KEY"]
    run(["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--aws-sigv4", "aws:amz:us-east-1:s3",
         "--user", user, "--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD", "--request", "PUT", "--data-binary",
         "@-", os.environ["ATOLL_TEST_S3_ENDPOINT"] + "/" + bucket + "?policy="], input=json.dumps(policy).encode())


def main():
    folder = sys.argv[1]
    request = json.load(sys.stdin)
    bucket = request["blob_store"].removeprefix("s3://").split("/")[0]
    keys = {"Version": 1, "AccessKeyId": "GRANT" + secrets.token_hex(8), "SecretAccessKey": secrets.token_hex(20)}
    expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=request["lifetime_seconds"])
    keys["Expiration"] = expires.isoformat(timespec="milliseconds")
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(folder, "accounts.json")
        accounts = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else []
        accounts = [*accounts, statements(keys["AccessKeyId"], bucket, request)][-KEPT_ACCOUNTS:]
        make_account(keys["AccessKeyId"], keys["SecretAccessKey"])
        put_policy(bucket, {"Version": "2012-10-17", "Statement": [one for account in accounts for one in account]})
        with open(path, "w", encoding="utf-8") as file:
            json.dump(accounts, file)
        with open(os.path.join(folder, "grants.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"request": request, "keys": keys}) + "\n")
    print(json.dumps(keys))


if __name__ == "__main__":
    main()
