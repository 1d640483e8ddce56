// How functions of this folder are declared, so that host tests can include what needs no GPU.
#pragma once

#ifdef __CUDACC__
#define FOVEA_HOST_DEVICE __host__ __device__ __forceinline__
#define FOVEA_DEVICE __device__ __forceinline__
#else
#define FOVEA_HOST_DEVICE inline
#endif
