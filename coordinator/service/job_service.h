// JobService over the core.
#pragma once

#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/storage/blob_store.h"
#include "coordinator/service/call.h"

namespace atl::coordinator {

class JobServiceImpl : public atlpb::job::v1::JobService::CallbackService {
 public:
  // `blob_thread` reads dataset manifests and the files that jobs name from `blobs`, which may take as long as the
  // network does.
  JobServiceImpl(ServiceContext context, storage::BlobStore* blobs, Executor* blob_thread)
      : context_(context), blobs_(*blobs), blob_thread_(*blob_thread) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* call,
                                      const atlpb::job::v1::SubmitJobRequest* request,
                                      atlpb::job::v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* call, const atlpb::job::v1::GetJobRequest* request,
                                   atlpb::job::v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* call, const atlpb::job::v1::ListJobsRequest* request,
                                     atlpb::job::v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* call,
                                      const atlpb::job::v1::CancelJobRequest* request,
                                      atlpb::job::v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* DeleteJob(grpc::CallbackServerContext* call,
                                      const atlpb::job::v1::DeleteJobRequest* request,
                                      atlpb::job::v1::DeleteJobResponse* response) override;
  grpc::ServerWriteReactor<atlpb::job::v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* call, const atlpb::job::v1::WatchJobRequest* request) override;

 private:
  const ServiceContext context_;
  storage::BlobStore& blobs_;
  Executor& blob_thread_;
};

}  // namespace atl::coordinator
